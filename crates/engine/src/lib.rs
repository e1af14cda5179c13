//! Sessions with targets: requests, plans, journal, sampling.
