// The reverse proxy of Go's standard library before a Triton: `proxy PORT http://HOST:PORT`.
package main

import (
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	upstream, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(upstream)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64 // as many as are asked at once; two by default
	proxy.Transport = transport
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], proxy))
}
