package wire

import "testing"

// Plain NATS clients, permissions and operators rely on these very strings.
func TestContract(t *testing.T) {
	m := Mesh("prod")
	for got, want := range map[string]string{
		m.Channel("work"):              "fab.prod.ch.work",
		m.Admin("nodes"):               "fab.prod.admin.nodes",
		m.Node("n1", 42):               "fab.prod.node.n1.42",
		m.NodeChannel("n1", 42, "w"):   "fab.prod.node.n1.42.ch.w",
		m.NodeHello("n1", 1<<64-1):     "fab.prod.node.n1.18446744073709551615.hello",
		m.Client("c"):                  "fab.prod.client.c",
		m.LocationBucket():             "FABRIC_prod_LOCATION",
		m.NodesBucket():                "FABRIC_prod_NODES",
		m.ChangePrefix():               "fab.prod.chg",
		QueueGroup:                     "fabric",
		HeaderRefused:                  "Fabric-Refused",
		HeaderFrom:                     "Fabric-From",
		HeaderServedBy:                 "Fabric-Served-By",
		NoticeSuffix:                   ".a",
		string(rune('0' + FlagNotice)): "1",
		string(rune('0' + FlagOneWay)): "2",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
