"""Types that all other packages use: ids, jobs, states, membership orders and events, the error tree; and the rate
limit of log messages."""
