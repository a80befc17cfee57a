//! Who goes next: the order in which waiting gangs are offered capacity.
