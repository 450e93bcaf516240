"""Attacks on every port of real nodes, and one judge of what a node must keep up under each.

An attack is a function of a random generator and a target (`site.Target`): it opens sockets, sends what it
likes, and returns; it runs in a process of its own that is killed after `judge.ATTACK_S`. The judge
(`judge.py`) knows no attack: it measures other clients' latency meanwhile, and looks at processes, memory,
log directories and log lines afterwards.

To add an attack:

1. write it in a module of this folder: `@attack("name", port="clients")` on a function
   `(rng: random.Random, target: Target) -> None`. Draw what may vary (counts, sizes, pauses, order) from
   `rng`, so that seeds are variations, and keep it bounded: some thousand sockets, some hundred MB. The port
   names are those of `site.PORTS`; `sockets.py` has raw and TLS connections.
2. import the module in `catalogue.py`.

`make attacks` runs every attack with SEEDS variations (`ONLY=name` for some), `test_attacks.py` those that it
names.
`python -m tests.attacks NAME --seed 7` repeats one.
"""
