package main

import (
	"os"
	"strconv"
	"syscall"
)

// A test run that is killed cannot stop what it started. BED_PARENT_PID asks the kernel to kill this process when its parent ends.
// An init function runs on the process's first thread, which lives as long as the process, and the kernel keeps the wish by thread.
func init() {
	parent, err := strconv.Atoi(os.Getenv("BED_PARENT_PID"))
	if err != nil {
		return
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	if os.Getppid() != parent { // it ended before the wish was made
		os.Exit(1)
	}
}
