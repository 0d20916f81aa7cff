"""One sample's likelihood with its activations integrated out."""
