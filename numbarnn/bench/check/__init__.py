"""`numbarnn check`: every engine that runs here against float64, cuDNN and PyTorch."""
