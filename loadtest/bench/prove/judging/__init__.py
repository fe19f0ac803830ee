"""What the attempts of a proof say. Pure: lists with times in, facts and verdicts out, so that `make test` tries it without a clock."""
