"""The peers of numbarnn: PyTorch, onnxruntime, cuDNN called directly."""
