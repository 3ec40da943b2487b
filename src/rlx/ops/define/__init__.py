"""What op classes are written with: operands and their promotion, derivative rules, samples, accumulation types."""
