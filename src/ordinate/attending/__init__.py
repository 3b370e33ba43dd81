"""One attention for every encoding: the interface, and the implementations it chooses from."""
