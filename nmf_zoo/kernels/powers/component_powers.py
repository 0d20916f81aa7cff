"""Powers of the components of a spectrogram, drawn and summed up for either factor's rows, and forgotten."""

from __future__ import annotations

from nmf_zoo.kernels.compile import kernel
from nmf_zoo.kernels.powers.composite import draw_parts, drop_unseen
from nmf_zoo.kernels.powers.frame_splits import add_scaled, sum_row
from nmf_zoo.kernels.random.keyed_rng import fold


@kernel
def sum_component_powers(of_frames, spectra, factors, frames, workspace, key):
    """Draw the relative powers |c_fkn|^2 / (w_fk h_kn) of frames[0] ... frames[1] - 1 given their sum, and add them up.

    Overwrites these rows of of_frames (N, K) with their sums over observed frequencies, and ``workspace.of_weights``
    (K, F) with those over these frames.
    """
    workspace.of_weights[:] = 0.0
    for n in range(frames[0], frames[1]):
        draw_parts(workspace, spectra, factors, n, fold(key, n))
        for k in range(factors.Wt.shape[0]):
            row = workspace.parts[k]
            if spectra.seen.size > 0:
                drop_unseen(row, spectra.seen[n])
            of_frames[n, k] = sum_row(row, row.size)
            add_scaled(workspace.of_weights[k], row, 1.0, row.size)
