"""CPU against GPU on a machine with a card: stages that leave results at once and continue each other (`loadtest/gpu/run.sh`).

`card` says what is measured on, each stage is a file, `ledger` keeps what was measured, `stages` gives each its clock, `page` shows.
`parts` and `libraries` run before any of this, with a bare Python. Rule: a number that nobody measured on a card is never shown.
"""
