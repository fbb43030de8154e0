# Keeps the contract of pytorch's torch.utils: a package for builders of extensions.
