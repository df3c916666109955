"""Pure-PyTorch references: what each kernel must do, in the shortest readable code. One module a kernel."""
