"""log p(x_n | W): one sample with its activations integrated out, exactly or by Monte Carlo."""
