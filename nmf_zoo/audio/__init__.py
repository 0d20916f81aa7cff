"""From sound to sound: recordings block by block, their spectra, and their separation into components."""
