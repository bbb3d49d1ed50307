// Package device holds the drivers of fence devices (FE-6, FE-7).
//
//   - [Command] runs programs: ipmitool, virsh, the fence agents, a script. It reaches what no other driver does.
//   - [Process] ends a process of the same machine and sees that it is gone.
//   - [PostgreSQL] takes a role's right to log in and ends its sessions.
//   - [NATS] takes a user's permission and kicks its connections from every server.
//
// # Guarantees
//
//   - Fenced is answered only when the process was seen gone or the path closed, by Fence too. Whatever could not be asked,
//     was not answered, or cannot be understood is Unknown.
//   - A driver ends when its context does, with what it started. It asks nothing of the target itself.
//
// # Non-guarantees
//
// What a target's labels say was written by the target while it was well: a label that is wrong fences the wrong thing or
// nothing, and the check cannot know. Set labels from the machine (SelfLabels), or fix them in the plan.
//
// PostgreSQL and NATS leave a path closed that a person opens again: ALTER ROLE .. LOGIN, DenyList.Allow.
package device
