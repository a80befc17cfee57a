//! Where it goes: filter, score and gang plan over the topology, under a work budget counted in visits.
