"""From sound to sound: recordings block by block, their spectra, and their separation into components.

In: ``samples`` (formats), ``wav`` (WAV files), ``recordings`` (any source of samples, and what is wrong with it),
``spectra`` (the transform and its inverse), ``sound`` (a recording as the model sees it). The separation: ``plan``
(what is asked for), ``learning`` (first pass, profiles), ``parts`` (second pass, activations and the components'
sounds), ``separation`` (the whole). Out: ``sinks`` (files of sound), ``pictures``.
"""
