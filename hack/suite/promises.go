package main

// promises are those of the README. `make test` fails if the test of one did not run.
var promises = []promise{
	{"pods come back after a reboot, with no network and no cloud", "./test/edge", "TestReboot"},
	{"pods run on while the agent is killed, and are adopted", "./test/edge", "TestKill9Adopts"},
}
