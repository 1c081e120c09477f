"""Peers that mean harm: tables, servers and clients, each beside feeds that must go on."""
