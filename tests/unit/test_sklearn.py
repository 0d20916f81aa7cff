"""The scikit-learn estimators, by scikit-learn's own checks and in its company."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import nmf_zoo as nz
from nmf_zoo import sklearn
from nmf_zoo.errors import InputError, UnsupportedModel
from nmf_zoo.results.component_order import draws_in_order
from nmf_zoo.sklearn import GammaPoissonNMF, ItakuraSaitoNMF
from tests.sizes import FULL, size

RNG = np.random.default_rng(0)
H, W = RNG.gamma(0.5, 10.0, (40, 2)), RNG.dirichlet([0.5] * 6, 2)
X = RNG.poisson(H @ W)
POWER = RNG.exponential(H @ W + 0.1)


QUICK = {"max_iter": 200} if FULL else {"max_iter": 200, "search": None}


@pytest.mark.engines  # of scikit-learn alone
@parametrize_with_checks([GammaPoissonNMF(**QUICK), ItakuraSaitoNMF(**QUICK)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted():
    return GammaPoissonNMF(2, random_state=1).fit(X)


def test_shapes_and_attributes(fitted):
    assert fitted.components_.shape == (2, 6)
    assert fitted.transform(X).shape == (40, 2)
    assert fitted.n_features_in_ == 6
    assert fitted.n_iter_ > 1
    assert "W" in fitted.inference_data_["posterior"]
    assert list(fitted.get_feature_names_out()) == ["gammapoissonnmf0", "gammapoissonnmf1"]


@pytest.mark.parametrize("search", [None, "auto", nz.Search(fits=2)])
@pytest.mark.parametrize("estimator", [GammaPoissonNMF(2, alpha_h=0.5), ItakuraSaitoNMF(2)], ids=type)
def test_activations_are_searched_for_where_components_are(estimator, search, monkeypatch):
    """Their objective has several optima here, too."""
    searched = []
    monkeypatch.setattr(sklearn, "fit", lambda **how: searched.append(how["search"]) or nz.fit(**how))
    own = clone(estimator).set_params(search=search, random_state=1, max_iter=20, tol=0)
    data = X if isinstance(estimator, GammaPoissonNMF) else POWER
    own.fit(data).transform(data)
    assert searched == [search, None if search is None else "auto"]


def test_an_unknown_parameter_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"n_component: got an argument that GammaPoissonNMF doesn't .*did you mean"):
        GammaPoissonNMF(n_component=2)


@pytest.mark.parametrize("estimator", [GammaPoissonNMF(2, random_state=3), ItakuraSaitoNMF(2, random_state=3)])
def test_transform_equals_fit_transform(estimator):
    data = X if isinstance(estimator, GammaPoissonNMF) else POWER
    both = estimator.fit_transform(data)
    np.testing.assert_allclose(estimator.transform(data), both, rtol=1e-9)
    np.testing.assert_allclose(estimator.transform(data[:7]), both[:7], rtol=1e-4, atol=1e-6)


def test_the_product_is_near_the_data(fitted):
    mean = fitted.inverse_transform(fitted.transform(X))
    assert np.abs(mean - H @ W).mean() < 0.6 * np.abs(X - H @ W).mean()


def test_activations_are_those_of_the_engine(fitted):
    """In the order of the components in which estimators have them."""
    of_engine = next(draws_in_order(fitted.inference_data_, None))["H"][0].mean("draw").to_numpy().T
    np.testing.assert_allclose(fitted.transform(X), of_engine, rtol=0.25, atol=0.5)


def test_sparse_and_dense_give_the_same(fitted):
    other = GammaPoissonNMF(2, random_state=1).fit(sp.csr_matrix(X))
    np.testing.assert_allclose(other.components_, fitted.components_, rtol=1e-3)
    np.testing.assert_allclose(other.transform(sp.csr_matrix(X)), fitted.transform(X), rtol=1e-2, atol=1e-3)


def test_score_is_a_bound_that_prefers_the_right_rank(fitted):
    train, test = X[:30], X[30:]
    scores = [GammaPoissonNMF(rank, random_state=1).fit(train).score(test) for rank in (1, 2)]
    assert scores[1] > scores[0]
    assert fitted.score(X) < 0.0


def test_the_gibbs_sampler_can_find_the_components():
    found = GammaPoissonNMF(2, engine="gibbs", draws=200, tune=200, random_state=1).fit(X)
    shares = found.components_ / found.components_.sum(axis=1, keepdims=True)
    nearest = min(np.abs(shares[order] - W).max() for order in ([0, 1], [1, 0]))
    assert nearest < 0.15
    assert found.n_iter_ == 400


def test_a_pipeline_from_texts():
    texts = ["sun sun rain", "rain wind rain", "goal ball", "ball goal team ball"] * 5
    pipeline = make_pipeline(CountVectorizer(), GammaPoissonNMF(2, random_state=1))
    activations = pipeline.fit_transform(texts)
    assert activations.shape == (20, 2)
    assert (activations[:2].argmax(axis=1) != activations[2:4].argmax(axis=1)).all()


@pytest.mark.parametrize("estimator", [GammaPoissonNMF(random_state=1), ItakuraSaitoNMF(random_state=1)])
def test_results_have_the_names_of_the_features(estimator):
    words = ["sun", "sea", "snow"]
    table = pd.DataFrame([[3, 2, 1], [1, 1, 5], [4, 3, 1]], columns=words)
    assert list(estimator.fit(table).inference_data_["posterior"]["feature"].values) == words
    assert list(estimator.partial_fit(table).inference_data_["posterior"]["feature"].values) == words
    assert estimator.transform(table).shape == (3, 2)


def test_a_grid_search_over_the_number_of_components():
    search = GridSearchCV(GammaPoissonNMF(random_state=1), {"n_components": [1, 2]}, cv=3).fit(X)
    assert search.best_params_ == {"n_components": 2}


def test_parts_of_the_data_one_by_one():
    model = GammaPoissonNMF(2, random_state=1)
    for part in np.array_split(np.tile(X, (20, 1)), 8):
        model.partial_fit(part)
    assert model.n_iter_ == 800
    assert model.components_.shape == (2, 6)
    once = model.transform(X)
    mean = model.inverse_transform(once)
    assert np.abs(mean - H @ W).mean() < np.abs(X - H @ W).mean()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_numbers_between_counts_are_streamed_as_counts_of_their_means(is_sparse):
    """Each is one of its neighbours, the right one on average; counts stay, and the same seed rounds alike."""
    as_given = sp.csr_matrix if is_sparse else np.asarray
    model = GammaPoissonNMF(2, random_state=1).partial_fit(as_given(X))
    np.testing.assert_array_equal(dense(model._streamable(as_given(X), 40)), X)
    parts = np.where(X > 0, X + 0.3, 0.0)
    rounded = np.stack([dense(model._streamable(as_given(parts), n)) for n in range(400)])
    assert set(np.unique(rounded - X)) == {0.0, 1.0}
    np.testing.assert_allclose(rounded[:, X > 0].mean(axis=0), parts[X > 0], atol=5 * np.sqrt(0.21 / 400))
    again = GammaPoissonNMF(2, random_state=1).partial_fit(as_given(parts))
    np.testing.assert_array_equal(
        again.components_, GammaPoissonNMF(2, random_state=1).partial_fit(as_given(parts)).components_
    )


def dense(table):
    return table.toarray() if sp.issparse(table) else table


def test_the_itakura_saito_estimator_streams_frames():
    model = ItakuraSaitoNMF(2, random_state=1)
    for part in np.array_split(POWER, 4):
        model.partial_fit(part)
    assert model.n_iter_ == 40
    assert np.all(np.isfinite(model.transform(POWER)))


@pytest.mark.parametrize("engine", ["vb", "em"])
def test_the_itakura_saito_estimator_fits_what_says_little(engine):
    """One sample, or powers of 0; with free components such data are refused."""
    for power in (POWER[:1], np.where(np.arange(6) < 3, 0.0, POWER)):
        model = ItakuraSaitoNMF(1, engine=engine, random_state=1).fit(power)
        assert np.all(np.isfinite(model.components_))
        assert np.all(model.components_ > 0)
        assert model.transform(power).shape == (len(power), 1)
    with pytest.raises(UnsupportedModel, match="proper"):
        ItakuraSaitoNMF(1, alpha_w=None, random_state=1).fit(POWER[:1])


@pytest.mark.engines
def test_the_prior_of_spectra_costs_nothing():
    """On what was simulated, some times, the mean spectrum is no further from the truth than with free components."""
    divergence = {1.0: 0.0, None: 0.0}
    for seed in range(size(2, 4)):
        rng = np.random.default_rng(seed)
        mean = rng.gamma(0.5, 10.0, (40, 2)) @ rng.dirichlet([0.5] * 6, 2) + 0.1
        power = rng.exponential(mean)
        for alpha_w in divergence:
            model = ItakuraSaitoNMF(2, alpha_w=alpha_w, random_state=3).fit(power)
            ratio = mean / model.inverse_transform(model.transform(power))
            divergence[alpha_w] += np.mean(ratio - np.log(ratio) - 1.0)
    assert divergence[1.0] <= divergence[None]


def test_a_stream_in_an_estimator_survives_pickling():
    model = GammaPoissonNMF(2, random_state=1).partial_fit(X)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.partial_fit(X).components_, model.partial_fit(X).components_)


def test_fitting_anew_forgets_the_stream():
    model = GammaPoissonNMF(2, random_state=1).partial_fit(X).fit(X)
    assert model.partial_fit(X).n_iter_ == 40


def test_too_few_iterations_are_worth_a_warning():
    with pytest.warns(ConvergenceWarning, match="stopped at max_iter"):
        GammaPoissonNMF(2, max_iter=2, random_state=1).fit(X)


def test_bad_input(fitted):
    with pytest.raises(NotFittedError):
        GammaPoissonNMF().transform(X)
    with pytest.raises(ValueError, match="Negative values in data"):
        GammaPoissonNMF().fit(-X)
    with pytest.raises(ValueError, match="X has 5 features, but GammaPoissonNMF is expecting 6"):
        fitted.transform(X[:, :5])
    with pytest.raises(InputError, match=r"X: got shape \(3, 3\); expected \(samples, 2\)"):
        fitted.inverse_transform(np.ones((3, 3)))
    with pytest.raises(InputError, match="engine: got 'hmc'"):
        GammaPoissonNMF(engine="hmc").fit(X)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (GammaPoissonNMF(0), "n_components: got 0; expected an integer >= 1"),
        (GammaPoissonNMF(2.5), "n_components: got 2.5; expected an integer >= 1"),
        (GammaPoissonNMF(mean_w=0), "mean_w: got values from 0.0 to 0.0; expected finite numbers > 0"),
        (GammaPoissonNMF(mean_h="q"), "mean_h: got str 'q'; expected a number"),
        (GammaPoissonNMF(alpha_h=-1), "alpha_h: got values from -1.0"),
        (ItakuraSaitoNMF(alpha="a"), "alpha: got str 'a'; expected a number"),
        (ItakuraSaitoNMF(alpha=np.ones(3)), r"alpha: got shape \(3,\)"),
        (ItakuraSaitoNMF(beta=-1.0), "beta: got values from -1.0"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_wrong_parameters_have_the_names_of_the_estimators(estimator, message, method):
    with pytest.raises(InputError, match=f"^{message}"):
        getattr(estimator, method)(X)
