"""numbarnn in PyTorch: recurrent networks as functions of tensors, with gradients, compiled whole."""
