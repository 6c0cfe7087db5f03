// Owns the precompiled torch/torch.h and GoogleTest that the tests on libtorch share.
