from .reshef_levy import AnytimeBound as AnytimeBound
from .reshef_levy import anytime_bound as anytime_bound
from .reshef_levy import full_bound as full_bound
from .reshef_levy import increment_bound as increment_bound
from .reshef_levy import noisy_sgd_bound as noisy_sgd_bound
from .reshef_levy import noisy_sgd_step as noisy_sgd_step
from .reshef_levy import step_size as step_size
