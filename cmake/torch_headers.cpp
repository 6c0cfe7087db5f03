// Owns the precompiled torch/torch.h that all targets on libtorch share.
