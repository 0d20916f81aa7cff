"""The engines for counts (Poisson), and for normal data where EM takes them."""
