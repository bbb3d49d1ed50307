package channels_test

const envMember = "CHANNELS_TEST_MEMBER"

func runMember() {}
