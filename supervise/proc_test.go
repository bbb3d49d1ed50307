package supervise

const roleVariable = "SUPERVISE_ROLE"

func playRole(string) int { return 0 }
