"""Operations, one room per family: forward, derivative rule and (where there is one) fused kernel side by side."""
