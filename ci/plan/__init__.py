"""What a run of CI builds and tests: an event becomes a plan, by one pure function.

`events`, `inputs` and `labels` read what was asked for; `paths` what changed; `families` chooses
families and `machines` their runners; `plan` puts the plan together; `outputs` and `telling` write it.
"""
