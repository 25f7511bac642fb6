package packet

import "gvisor.dev/gvisor/pkg/tcpip"

// Write implements tcpip.Endpoint.Write. As on Linux, a frame is not empty.
func (ep *endpoint) Write(p tcpip.Payloader, opts tcpip.WriteOptions) (int64, tcpip.Error) {
	if p.Len() == 0 {
		return 0, &tcpip.ErrInvalidOptionValue{}
	}
	return ep.writeFrame(p, opts)
}
