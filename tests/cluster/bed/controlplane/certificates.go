package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// A bed lives for minutes; a day leaves room for one that somebody looks at.
const lifetime = 24 * time.Hour

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// writeCertificates fills a folder: ca, server, admin, front-proxy (.crt and .key each), sa.key, and other-ca.crt, which signed nothing.
func writeCertificates() int {
	if len(os.Args) != 2 {
		return failed(fmt.Errorf("usage: controlplane certificates FOLDER"))
	}
	if err := fill(os.Args[1]); err != nil {
		return failed(err)
	}
	return 0
}

func fill(folder string) error {
	ca, err := newAuthority(folder, "ca")
	if err != nil {
		return err
	}
	if _, err := newAuthority(folder, "other-ca"); err != nil {
		return err
	}
	server := leaf("kube-apiserver", x509.ExtKeyUsageServerAuth)
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)}
	server.DNSNames = []string{"localhost", "kubernetes.default.svc", "external-metrics.kube-system.svc"}
	admin := leaf("admin", x509.ExtKeyUsageClientAuth)
	admin.Subject.Organization = []string{"system:masters"}
	proxy := leaf("front-proxy", x509.ExtKeyUsageClientAuth) // the API server towards aggregated APIs
	for name, template := range map[string]*x509.Certificate{"server": server, "admin": admin, "front-proxy": proxy} {
		if err := issue(folder, name, template, ca); err != nil {
			return err
		}
	}
	_, err = newKey(filepath.Join(folder, "sa.key"))
	return err
}

func newAuthority(folder, name string) (authority, error) {
	key, err := newKey(filepath.Join(folder, name+".key"))
	if err != nil {
		return authority{}, err
	}
	template := leaf("bed-"+name, x509.ExtKeyUsageAny)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return authority{}, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return authority{}, err
	}
	return authority{certificate, key}, writePEM(filepath.Join(folder, name+".crt"), "CERTIFICATE", der)
}

func leaf(name string, usage x509.ExtKeyUsage) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}
}

func issue(folder, name string, template *x509.Certificate, by authority) error {
	key, err := newKey(filepath.Join(folder, name+".key"))
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, &key.PublicKey, by.key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(folder, name+".crt"), "CERTIFICATE", der)
}

func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key) // the form in which Kubernetes reads keys of service accounts
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
