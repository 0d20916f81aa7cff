"""scikit-learn estimators: rows of X are samples, as everywhere there, so X ~ transform(X) @ components_.

``fit`` runs an engine on the declaration of X's transpose. ``transform`` is the variational posterior mean of the
activations given ``components_``, whatever engine found these: the same map for old and new samples, so that
``fit_transform(X)`` is ``fit(X).transform(X)``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nmf_zoo import _compat
from nmf_zoo.errors import InputError, NmfZooWarning, under_names, warn_caller
from nmf_zoo.inference.counts.vb import VB
from nmf_zoo.inference.registry import verb_of
from nmf_zoo.kernels.random.keyed_rng import child, generator_of, seed_key
from nmf_zoo.models import gamma_nmf, gap, is_nmf
from nmf_zoo.models.hyperparameters import require_positive
from nmf_zoo.models.matrices import as_float_array
from nmf_zoo.options import AUTO, names_checked
from nmf_zoo.results.component_order import draws_in_order
from nmf_zoo.runtime.arguments import check_counts
from nmf_zoo.sparse import checked_sparse
from nmf_zoo.streaming.stream import stream
from nmf_zoo.verbs.sample_and_fit import fit, sample

__all__ = ["GammaPoissonNMF", "ItakuraSaitoNMF"]

SMALLEST = 1e-12  # mean of X: data of zeros still need a scale


class _Factorisation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What both estimators share. Subclasses declare the model and its stream, and say how to read VB's means."""

    _takes_sparse = True

    def fit(self, X: Any, y: Any = None) -> Any:
        """Learn the components.

        Parameters
        ----------
        X : (samples, features) array or sparse matrix, non-negative
        y : ignored

        Returns
        -------
        self
        """
        X = self._checked(X, reset=True)
        self._begin(X)
        model = self._model(X.T)
        seed = self._seed()
        engine, length = self.engine, {"random_seed": seed, "quiet": True, "cores": self.n_jobs or 1, "model": model}
        if verb_of(engine) == "fit":
            how = {"max_iter": self.max_iter, "tol": self.tol, "restarts": self.restarts, "search": self.search}
            found = fit(engine=engine, **how, **length)
            group = _compat.group(found, "fit").isel(chain=0)
            self.n_iter_ = int(group["iterations"])
            if self.tol > 0 and not bool(group["converged"]):
                warn_caller(f"{group['reason'].item()} ({self.n_iter_})", ConvergenceWarning)
        else:
            start = "random" if self.search is None else self.search
            found = sample(self.draws, engine=engine, tune=self.tune, chains=1, extend=1, start=start, **length)
            self.n_iter_ = self.draws + self.tune
        self.inference_data_ = found
        W = next(draws_in_order(found, None))["W"][0].mean("draw")
        self.components_ = np.ascontiguousarray(W.transpose("component", "feature").to_numpy())
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Activations of samples, given the components.

        Parameters
        ----------
        X : (samples, features)

        Returns
        -------
        (samples, components) posterior means
        """
        return self._activations(self._checked(X))[0]

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> np.ndarray:
        """``fit(X).transform(X)``."""
        return self.fit(X, y, **fit_params).transform(X)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Means of the data: activations (samples, components) times the components."""
        check_is_fitted(self)
        activations = np.asarray(X, dtype=np.float64)
        if activations.ndim != 2 or activations.shape[1] != len(self.components_):
            expected = f"(samples, {len(self.components_)}), activations as of transform"
            raise InputError("X", f"shape {activations.shape}", expected)
        return activations @ self.components_

    def score(self, X: Any, y: Any = None) -> float:
        """Bound of the log evidence of samples given the components, in nats a sample: higher is better.

        The activations are integrated out, so that held-out samples can be scored. At most the exact value.
        """
        X = self._checked(X)
        return self._activations(X)[1] / X.shape[0]

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Learn from some more samples, by the streaming engine: online EM.

        The first call begins; ``fit`` begins anew. Priors of the components do not enter: W is free in the stream. The
        stream of counts allocates them one by one, so that numbers between two counts are one of them at random, with
        the right mean.
        """
        is_first = not hasattr(self, "_stream")
        X = self._checked(X, reset=is_first)
        if is_first:
            self._begin(X)
            self._stream_seed = self._seed()
            declared, cores = self._declare_stream(X.shape[1]), self.n_jobs or 1
            self._stream = stream(declared, random_seed=self._stream_seed, cores=cores)
        X = self._streamable(X, self._stream.columns_seen)
        self._stream.update(X.T.tocsc() if hasattr(X, "tocsc") else X.T)
        self.n_iter_ = self._stream.columns_seen
        self.inference_data_ = self._stream.result()
        self.components_ = np.ascontiguousarray(self._stream.W.to_numpy().reshape(X.shape[1], -1).T)
        return self

    def _streamable(self, X: Any, n_seen: int) -> Any:
        """X as the stream takes it, after ``n_seen`` samples."""
        return X

    def _checked(self, X: Any, reset: bool = False) -> Any:
        if not reset:
            check_is_fitted(self)
        if issparse(X):
            checked_sparse("X", X)
        kinds = {"accept_sparse": self._takes_sparse and "csr", "dtype": np.float64, "ensure_non_negative": True}
        return validate_data(self, X, reset=reset, **kinds)

    def _begin(self, X: Any) -> None:
        """Forget the stream, and settle the scale of the priors."""
        if hasattr(self, "_stream"):
            del self._stream
        check_counts(n_components=(self.n_components, 1))
        self._settle(max(float(X.mean()), SMALLEST) / self.n_components)

    def _positive(self, name: str) -> Any:
        """A parameter of a prior, which is positive."""
        array = as_float_array(name, getattr(self, name))
        require_positive(name, array)
        return array[()]

    def _settle(self, mean: float) -> None:
        """The scale of the activations' prior; ``mean`` is what a component adds to a cell on average."""
        raise NotImplementedError

    def _model(self, X: Any) -> pm.Model:
        """The declaration of X (features, samples), without a word on rows of zeros: they are common in pipelines."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NmfZooWarning)
            return self._declare(X)

    def _labels(self) -> dict[str, Any]:
        """The names of the features, where X had some."""
        return {"feature": getattr(self, "feature_names_in_", None)}

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _activations(self, X: Any) -> tuple[np.ndarray, float]:
        """(posterior means of the activations (samples, components), bound of log p(X | components))."""
        model = pm.do(self._model(X.T), {"W": self.components_.T})
        search = None if self.search is None else AUTO  # a Search is of the components
        how = {"max_iter": self.max_iter, "tol": 1e-8, "draws": 1, "search": search, "random_seed": 0, "cores": 1}
        found = fit(engine=VB(), quiet=True, model=model, **how)
        group = _compat.group(found, "fit")
        objective = group["objective"].isel(chain=0).dropna("iteration")
        return self._mean(group).T, float(objective[-1])

    def _mean(self, group: Any) -> np.ndarray:
        """E[H] (components, samples) from the parameters of its variational posterior."""
        raise NotImplementedError

    def _declare(self, X: Any) -> pm.Model:
        raise NotImplementedError

    def _declare_stream(self, n_features: int) -> pm.Model:
        raise NotImplementedError

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = self._takes_sparse
        tags.transformer_tags.preserves_dtype = []
        return tags


@names_checked
class GammaPoissonNMF(_Factorisation):
    """Gamma-Poisson factorisation of counts: x_nf ~ Poisson(h_n . w_f), W and H gamma.

    Parameters
    ----------
    n_components : number of components
    alpha_w, mean_w, alpha_h, mean_h : shape and mean of the gamma priors of the components' cells and of the
        activations; numbers. ``mean_h=None``: such that the prior mean of X is its mean in the data
    engine : "vb", "em" or "gibbs", or options such as ``nz.VB()``
    max_iter, tol, restarts : of "vb" and "em"
    search : for the best mode: "auto", None, or a :class:`~nmf_zoo.Search`; see :func:`nmf_zoo.fit`. Activations given
        the components are searched for, too, where they have several optima, unless it is None
    draws, tune : of "gibbs", one chain
    random_state : seed, generator or None
    n_jobs : threads, default 1. Results do not depend on it

    Attributes
    ----------
    components_ : (components, features) posterior means
    mean_h_ : the mean of the activations' prior
    n_iter_ : iterations, sweeps, or samples seen by partial_fit
    inference_data_ : result of the engine, with everything it says about uncertainty
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> from nmf_zoo.sklearn import GammaPoissonNMF
    >>> X = [[9, 0, 1], [8, 1, 0], [0, 7, 5]]
    >>> GammaPoissonNMF(n_components=2, random_state=1).fit_transform(X).shape
    (3, 2)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha_w: float = 1.0,
        mean_w: float = 1.0,
        alpha_h: float = 1.0,
        mean_h: float | None = None,
        engine: Any = "vb",
        max_iter: int = 1000,
        tol: float = 1e-4,
        restarts: int = 1,
        search: Any = "auto",
        draws: int = 500,
        tune: int = 500,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.alpha_w, self.mean_w, self.alpha_h, self.mean_h = alpha_w, mean_w, alpha_h, mean_h
        self.engine, self.max_iter, self.tol = engine, max_iter, tol
        self.restarts, self.search = restarts, search
        self.draws, self.tune, self.random_state, self.n_jobs = draws, tune, random_state, n_jobs

    def _settle(self, mean: float) -> None:
        mean_w = self._positive("mean_w")
        self.mean_h_ = mean / mean_w if self.mean_h is None else self._positive("mean_h")

    def _declare(self, X: Any) -> pm.Model:
        of_w: dict[str, Any] = {"alpha_w": self.alpha_w, "mean_w": self.mean_w}
        of_h: dict[str, Any] = {"alpha_h": self.alpha_h, "mean_h": self.mean_h_}
        return gamma_nmf(X, self.n_components, **of_w, **of_h, coords=self._labels())

    def _declare_stream(self, n_features: int) -> pm.Model:
        of_h: dict[str, Any] = {"alpha_h": self.alpha_h, "mean_h": self.mean_h_}
        return gap(None, self.n_components, **of_h, shape=(n_features, 1), coords=self._labels())

    def _streamable(self, X: Any, n_seen: int) -> Any:
        """Numbers between two counts become the upper one with the probability of their fraction: E[count] = x."""
        values = X.data if issparse(X) else X
        below = np.floor(values)
        if np.array_equal(below, values):
            return X
        uniforms = generator_of(child(seed_key(self._stream_seed), n_seen)).random(values.shape)
        counts = below + (uniforms < values - below)
        if not issparse(X):
            return counts
        rounded = X.copy()
        rounded.data = counts
        rounded.eliminate_zeros()
        return rounded

    def _mean(self, group: Any) -> np.ndarray:
        return (group["H_shape"] / group["H_rate"]).isel(chain=0).to_numpy()


@names_checked
class ItakuraSaitoNMF(_Factorisation):
    """Itakura-Saito factorisation of power spectra: x_nf ~ Exponential(mean h_n . w_f), W and H inverse-gamma.

    Parameters
    ----------
    n_components : number of components
    alpha : shape of the inverse-gamma prior of the activations
    beta : its scale; None: such that it is at the scale of the data
    alpha_w : shape of the components' inverse-gamma prior, at the scale 1, which is worth so many cells. With it every
        X can be fitted, one sample or powers of 0 too; None: components are free, and X must say enough of them
    engine : "vb" or "em", or options such as ``nz.EM()``
    max_iter, tol, restarts, search, random_state, n_jobs : as of :class:`GammaPoissonNMF`

    Attributes
    ----------
    components_, n_iter_, inference_data_, n_features_in_ : as of :class:`GammaPoissonNMF`
    beta_ : the scale of the activations' prior

    Examples
    --------
    >>> import numpy as np
    >>> from nmf_zoo.sklearn import ItakuraSaitoNMF
    >>> power = np.random.default_rng(0).exponential(np.outer([1.0, 2.0, 5.0], [1.0, 3.0]))
    >>> ItakuraSaitoNMF(n_components=1, random_state=1).fit(power).components_.shape
    (1, 2)
    """

    _takes_sparse = False
    draws, tune = 500, 500

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha: float = 1.0,
        beta: float | None = None,
        alpha_w: float | None = 1.0,
        engine: Any = "vb",
        max_iter: int = 1000,
        tol: float = 1e-4,
        restarts: int = 1,
        search: Any = "auto",
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.n_components, self.alpha, self.beta, self.alpha_w = n_components, alpha, beta, alpha_w
        self.engine, self.max_iter, self.tol = engine, max_iter, tol
        self.restarts, self.search = restarts, search
        self.random_state, self.n_jobs = random_state, n_jobs

    def _settle(self, mean: float) -> None:
        alpha = self._positive("alpha")
        self.beta_ = mean * alpha if self.beta is None else self._positive("beta")

    def _declare(self, X: Any) -> pm.Model:
        of_w = {} if self.alpha_w is None else {"alpha_w": self._positive("alpha_w"), "beta_w": self.alpha_w}
        with under_names(alpha_h="alpha", beta_h="beta"):
            of_h: dict[str, Any] = {"alpha_h": self.alpha, "beta_h": self.beta_}
            return is_nmf(X, self.n_components, **of_h, **of_w, coords=self._labels())

    def _declare_stream(self, n_features: int) -> pm.Model:
        of_h: dict[str, Any] = {"alpha_h": self.alpha, "beta_h": self.beta_}
        with under_names(alpha_h="alpha", beta_h="beta"):
            return is_nmf(None, self.n_components, **of_h, shape=(n_features, 1), coords=self._labels())

    def _mean(self, group: Any) -> np.ndarray:
        return group["H_mean"].isel(chain=0).to_numpy()
