"""How experts of a read are launched. Pure; every choice gives the same bits."""

from strata.kernels.read_products.launches import ExpertLaunch

HIDDEN_LAUNCH = ExpertLaunch(rows=128, more_rows=32, outputs=128, warps=8, registers=128)
DOWN_LAUNCH = ExpertLaunch(rows=128, more_rows=32, outputs=128, warps=4, groups=2)
