"""The report: one page that stands alone, for every kind of result, and that says what the result can tell."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import scipy.sparse as sp

import nmf_zoo as nz
from nmf_zoo import _compat
from nmf_zoo.errors import InputError
from nmf_zoo.reports import page as page_module
from nmf_zoo.reports import pictures, source
from nmf_zoo.reports.declaration import model_parts

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("unarranged_pictures")

VOID = {"meta", "link", "img", "br"}
FEATURES = ["<b>&", '"quoted"', "$a$", "d", "e"]
X = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(0.5, 8.0, (5, 12)))
QUICK = {"draws": 60, "tune": 40, "chains": 2, "random_seed": 1, "quiet": True}


class Page(HTMLParser):
    """A page that is read tag by tag; ``problems`` are what a browser would have to guess at, or to fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is never closed" for tag in self.open]
        keys = [attrs["id"] for _, attrs in self.tags if "id" in attrs]
        self.problems += [f"two ids {key}" for key in set(keys) if keys.count(key) > 1]
        self.problems += [f"no {target}" for target in self.targets if target[1:] not in keys]

    @property
    def targets(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.tags if tag == "a"]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        for name in ("src", "href"):
            if name in given and not str(given[name]).startswith(("data:", "#")):
                self.problems.append(f"<{tag} {name}={given[name]!r}> is not in the page")
        if tag == "img" and not given.get("alt"):
            self.problems.append("a picture without alt text")
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes another tag")

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def read_page(path) -> Page:
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.problems == []
    assert not re.search(r"url\((?!#)|@import|<script", text)
    pictures = [str(attrs["src"]) for tag, attrs in page.tags if tag == "img"]
    assert all(base64.b64decode(source.partition(",")[2]).startswith(b"\x89PNG") for source in pictures)
    return page


def n_pictures(page: Page) -> int:
    return sum(tag == "img" for tag, _ in page.tags)


@pytest.fixture
def saved_pictures():
    """For tests whose pictures are saved; the others' are drawn and stand for themselves by one pixel's header."""


@pytest.fixture(autouse=True)
def _coarse_pictures(request, monkeypatch):
    monkeypatch.setattr(page_module, "DPI", 40)
    if "saved_pictures" not in request.fixturenames:
        image = base64.b64encode(b"\x89PNG").decode()
        stub = '<img src="data:image/png;base64,{}" alt="{}">'.format
        monkeypatch.setattr(pictures, "picture", lambda drawn, alt, caption="": stub(image, alt))


@pytest.fixture(scope="module")
def model():
    return nz.gamma_nmf(X, rank=2, coords={"feature": FEATURES})


@pytest.fixture(scope="module")
def idata(model):
    return nz.sample(model=model, **QUICK)


def written(tmp_path, *args, **options) -> Page:
    return read_page(nz.report(args[0], tmp_path / "report.html", *args[1:], **options))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<p>open", "<p> is never closed"),
        ("<p><b>x</p></b>", "</p> closes another tag"),
        ('<img src="data:," alt="">', "a picture without alt text"),
        ('<img src="https://example.org/a.png" alt="a">', "is not in the page"),
        ('<link href="style.css">', "is not in the page"),
        ('<a href="#nowhere">x</a>', "no #nowhere"),
        ('<p id="a">x</p><p id="a">x</p>', "two ids a"),
    ],
)
def test_the_check_sees_what_is_wrong(text, problem):
    assert any(problem in found for found in Page(text).problems)


def test_draws(tmp_path, idata, saved_pictures):
    page = written(tmp_path, idata)
    assert n_pictures(page) == 4
    for words in ("features (rows) 5", "samples (columns) 12", f"total {X.sum():,}", "2 chains x 60 draws", "seed 1"):
        assert words in page.text
    zeros = int((X == 0).sum())
    assert f"zeros {zeros} ({zeros / X.size:.1%} of the observed cells)" in page.text
    assert "raw R-hat" in page.text
    assert "W: 5 x 2, Gamma(shape=1, rate=1)" in page.text
    assert "What to do next: run again for longer (draws=1000, tune=1000)" in page.text


def test_labels_are_text(tmp_path, idata, saved_pictures):
    page = written(tmp_path, idata, title="<script>alert(1)</script>")
    assert all(label in page.text for label in FEATURES)
    assert not {"b", "script"} & {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>" in page.text


def test_with_its_model(tmp_path, idata, model, saved_pictures):
    page = written(tmp_path, idata, model)
    assert any(tag == "svg" for tag, _ in page.tags)
    assert "Graph of the model: X ~ Poisson(W @ H), rank 2" in page.text
    assert "W: 5 x 2, Gamma(shape=1, rate=1)" in page.text
    assert "is that of this model" in page.text


def test_another_model_is_noticed(tmp_path, idata):
    page = written(tmp_path, idata, nz.gamma_nmf(X, rank=2, alpha_w=3.0))
    assert "it came from another model, or from other data" in page.text
    with pytest.raises(InputError, match=r"W of shape \(5, 2\)"):
        nz.report(idata, tmp_path / "report.html", nz.gamma_nmf(X, rank=3))


def test_what_else_is_in_the_graph(tmp_path):
    how = {"exposure": np.full(X.shape, 2.0), "background": np.full(X.shape, 0.1)}
    model = nz.gamma_nmf(X, rank=1, alpha_w=nz.free(), **how)
    page = written(tmp_path, nz.fit(model=model, engine="vb", random_seed=1, quiet=True), model)
    drawn = page.text.partition("Graph of the model")[2].partition("White: unknown")[0]
    for words in ("alpha_w free (no prior)", "shape = alpha_w", "exposure array 5 x 12", "background array 5 x 12"):
        assert words in drawn
    assert sum(tag == "line" for tag, _ in page.tags) == 5


def test_fits(tmp_path, model):
    page = written(tmp_path, nz.fit(model=model, engine="em", restarts=3, random_seed=1, quiet=True))
    assert "Restarts, the best first (objective, lower is better)" in page.text
    assert "restart 0" in page.text
    assert n_pictures(page) == 4
    stopped = nz.fit(model=model, engine="em", max_iter=2, random_seed=1, quiet=True)
    assert "did not converge" in written(tmp_path, stopped).text


def test_streams(tmp_path, saved_pictures):
    model = nz.gap(None, rank=2, shape=(5, 2))
    stream = nz.stream(model, random_seed=1)
    stream.update(X)
    for args in ((), (model,)):
        page = written(tmp_path, stream.result(), *args)
        assert "columns seen 12" in page.text
        assert "The result holds no H: a stream keeps none" in page.text
        assert n_pictures(page) == 2


def test_sums_of_a_stream_have_the_numbers_of_its_components():
    """By the size of W's columns, where the stream itself has the smaller one first."""
    stream = nz.stream(nz.gap(None, rank=2, shape=(5, 2)), random_seed=1)
    stream.update(X)
    result = stream.result()
    sums = stream.W.sum("feature").to_numpy()
    drawn = pictures._plot_norms(source.Source(result, None, None, "W", "H", None)).axes[0]
    shown = {int(text.get_text()): text.xy[1] for text in drawn.texts}
    assert shown == pytest.approx(dict(enumerate(np.sort(sums)[::-1])))
    named = nz.name_components(result, {0: "large"})
    drawn = pictures._plot_norms(source.Source(named, None, None, "W", "H", None)).axes[0]
    assert [text.get_text().strip() for text in drawn.texts] == ["large", "1"]


def test_moments(tmp_path, model):
    kept = nz.sample(model=model, keep="moments", **QUICK)
    for args in ((), (model,)):
        page = written(tmp_path, kept, *args)
        assert "kept mean and sd of 2 chains x 60 draws" in page.text
        assert "alignment needs draws" in page.text
        assert n_pictures(page) == 4


def test_known_components_have_all_pictures(tmp_path):
    """Their activations are what is asked for; no chain has them in another order, so that nothing is aligned."""
    known = np.random.default_rng(2).dirichlet(np.ones(5), 2).T
    refit = nz.gamma_nmf(X, 2, known=known)
    page = written(tmp_path, nz.sample(engine="gibbs", model=refit, **QUICK), refit)
    assert not page.problems
    assert n_pictures(page) == 4  # components, activations, reconstruction, lp
    assert "W is known, and its components are in one order in every chain" in page.text
    assert "The components of all 2 chains" in page.text


def test_chains_in_time(tmp_path):
    model = nz.hmm_nmf(X, rank=2, chain="basis")
    result = nz.fit(model=model, engine="hmm_exact", max_iter=20, random_seed=1, quiet=True)
    for args in ((), (model,)):
        assert "BasisChain" in written(tmp_path, result, *args).text
    result.attrs.pop("model")
    assert "Also in the posterior: p, q." in " ".join(model_parts(source.Source(result, None, None, "W", "H", None)))


def test_powers(tmp_path):
    model = nz.is_nmf(X + 0.5, rank=2)
    page = written(tmp_path, nz.sample(model=model, **QUICK), model)
    assert "X ~ Exponential" in page.text
    assert n_pictures(page) == 4


@pytest.mark.parametrize("observed", [None, "stored"])
def test_listed_cells(tmp_path, observed):
    how = {} if observed is None else {"observed": observed}
    model = nz.gamma_nmf(sp.csr_matrix(X), rank=2, **how)
    kept = nz.sample(model=model, **{**QUICK, "chains": 1})
    alone = written(tmp_path, kept)
    assert "cells listed" in alone.text
    assert "said by the model, below." in alone.text
    assert ", stored as a list of cells" in alone.text
    assert "Only 60 draws per chain" in alone.text
    full = written(tmp_path, kept, model)
    zeros = int((X == 0).sum())
    assert ("missing cells none" if observed is None else f"missing cells {zeros}") in full.text


def test_foreign_draws(tmp_path, idata):
    """Nothing but W and H under other names."""
    drawn = _compat.group(idata, "posterior").rename({"W": "A", "H": "B"})
    page = written(tmp_path, _compat.inference_data({"posterior": drawn}, {}), weights="A", activations="B")
    assert "The result holds no data" in page.text
    assert "give the model to see them" in page.text
    assert n_pictures(page) == 2


def test_swapped_chains_are_explained(tmp_path):
    sharp = np.random.default_rng(0).poisson(np.kron(np.eye(2), np.full((3, 20), 40.0)))
    drawn = nz.sample(model=nz.gamma_nmf(sharp, rank=2), draws=300, tune=200, chains=2, random_seed=1, quiet=True)
    aligned = _compat.group(nz.align(drawn, scale="drawn"), "posterior")
    for is_swapped in (False, True):
        group = aligned.copy(deep=True)
        for name, axis in (("W", -1), ("H", -2)) if is_swapped else ():
            array = group[name].to_numpy()
            array[1] = np.flip(array[1], axis)
        page = written(tmp_path, _compat.with_groups(drawn, {"posterior": group}))
        assert ("comes from the order of components" in page.text) == is_swapped


def test_many_components_show_the_largest(tmp_path, idata, monkeypatch):
    for module in (pictures, source):
        monkeypatch.setattr(module, "MOST_COMPONENTS", 1)
    page = written(tmp_path, idata)
    assert "The 1 largest of 2 components" in page.text
    (part,) = re.findall(r"top features and their shares 0 ([0-9.]+)%", page.text)
    assert 50.0 <= float(part) < 100.0


@pytest.mark.parametrize(
    ("path", "message"), [("report.pdf", "ends in .html"), ("missing/report.html", "a folder that exists")]
)
def test_names_that_are_refused(tmp_path, idata, path, message):
    with pytest.raises(InputError, match=message):
        nz.report(idata, tmp_path / path)


def test_other_objects_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"the result of nz\.sample or nz\.fit"):
        nz.report(3, tmp_path / "report.html")
