"""What numbarnn is compared with: PyTorch, onnxruntime, cuDNN called directly."""
