"""theta_i on D_i: losses, local SGD, and the draw behind log P(D_j | theta_i)."""
