package guest

import (
	"net/netip"
	"slices"
	"testing"
)

func TestOpenConnections(t *testing.T) {
	t.Parallel()
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	got := openConnections(head +
		"   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5 1 0 0 0 0 0 0\n" + // listens
		"   1: 02004064:C350 08080808:01BB 01 00000000:00000000 00:00000000 00000000     0        0 6 1 0 0 0 0 0 0\n" +
		"   2: 0100007F:C351 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 7 1 0 0 0 0 0 0\n" + // within the guest
		"   3: 02004064:C352 08080808:01BB 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 0 0 0 0 0\n" + // over
		"   4: 0000000000000000FFFF000002004064:0001 0000000000000000FFFF000001004064:9C40 08 0:0 0:0 0 0 0 8 1 0 0 0 0 0 0\n" +
		"   5: 02004064:C353\n   6: x:y z: 01\n" +
		"   7: 00000000000000000000000001000000:C350 00000000000000000000000002000000:0050 01 0\n") // IPv6
	want := []Connection{
		{Local: netip.MustParseAddrPort("100.64.0.2:50000"), Remote: netip.MustParseAddrPort("8.8.8.8:443")},
		{Local: netip.MustParseAddrPort("100.64.0.2:1"), Remote: netip.MustParseAddrPort("100.64.0.1:40000")},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
