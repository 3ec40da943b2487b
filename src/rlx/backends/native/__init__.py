"""Native code in this process: object files kept, checked, linked and called."""
