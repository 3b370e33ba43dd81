"""Every catalog entry × every property: what an encoding must do to be called exact."""
