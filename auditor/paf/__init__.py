"""The perturbation amplification factor of a model's layers: how hard each is to invert ("PAF", seed paper section 5).

factor     the formulas, from the spectrum of a Jacobian
spectrum   that spectrum: exact, or by stochastic Lanczos quadrature where the Jacobian is too large
layers     which layers of a model are looked at, and their Jacobians at what a text put into them
measure    a model on public texts, layer by layer
bypass     the check: does inversion get better where a layer with a high factor is bypassed?
plot       factors over the depth of the model, as SVG
"""
