"""Where values lie: live ranges, packing, updates in place, and an interpreter that checks the plan."""
