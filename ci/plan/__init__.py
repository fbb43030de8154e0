"""What a run of CI builds and tests: an event becomes a plan, by one pure function.

`events` and `inputs` read what happened and what is requested, and `data` what follows from it. `decisions`
puts these together as a `PlanBasis`. `families` chooses GPU families and machines, `expansion` their cells,
and `plan` the jobs. `origins` completes a plan with where its ROCm comes from, among the `artifacts` of runs
and the packages of indexes. `outputs` writes it for people and for jobs.
"""
