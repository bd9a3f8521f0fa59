"""Programs of ExecuTorch (``.pte``): each kernel that its runtime calls, and each delegate."""
