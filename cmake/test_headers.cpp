// Owns the precompiled GoogleTest that the tests of the core share.
