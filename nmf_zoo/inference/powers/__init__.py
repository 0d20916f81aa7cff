"""The engines for exponential data: Itakura-Saito NMF of power spectrograms and its composite model.

X_fn is the power of a sum of independent circular complex Gaussian components c_fkn with variances W_fk H_kn (Fevotte,
Bertin, Durrieu 2009). Names and options are those of the engines for counts.
"""
