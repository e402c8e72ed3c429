"""Refusals of settings that no protocol allows."""

from fedprivjax.checks import require_choice, require_positive


def check_settings(protocol) -> None:
    """Refuse settings that no protocol allows."""
    require_positive("mu", protocol.mu, optional=True, infinite=True)
    for name in ("step_size", "step_scale", "clip"):
        require_positive(name, getattr(protocol, name), optional=True)
    if isinstance(protocol.noise_std, int | float) and not protocol.noise_std >= 0:
        raise ValueError(f"noise_std must not be negative, got {protocol.noise_std}")
    if protocol.mu is not None and protocol.noise_std is not None and isinstance(protocol.mu, int | float):
        raise ValueError(f"give mu or noise_std, not both, got mu = {protocol.mu} and noise_std = {protocol.noise_std}")
    require_choice("trust", protocol.trust, ("server", "none"))
