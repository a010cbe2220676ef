"""The attempts of the isolation probe, by subject: standard library only, since they run as the user's script. No test is here."""
