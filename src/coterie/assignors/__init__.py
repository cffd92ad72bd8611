"""Pure functions that compute an assignment from the jobs, the members and the jobs that each member owns."""
