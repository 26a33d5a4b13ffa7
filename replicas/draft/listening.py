"""The socket that a draft worker listens on: its bounds, and which port it gets."""

import ipaddress
import socket as network
from typing import Final

import zmq

from kvstore.signed_frames import MAX_MESSAGE_BYTES
from replicas.errors import NoDraftPort

QUEUED_MESSAGES: Final = 64
"""In each direction, for each verifier."""
KEEPALIVE_IDLE_S: Final = 10
"""TCP's own, by which connections whose other end vanished are closed. ZeroMQ's heartbeats
must stay off at both ends: libzmq 4.3.5 aborts the process when one falls due on a connection
that broke while its queue was full."""


def listen(socket: zmq.Socket[bytes], host: str, first_port: int, last_port: int) -> int:
    """Bounds a ROUTER socket and binds it to the first free port of a range.

    Args:
        socket: Not bound yet.
        host: Address of this machine, or a name of one.
        first_port: Of the ports it may take.
        last_port: Of the ports it may take.

    Returns:
        The port.

    Raises:
        NoDraftPort: None is free, or the host is none of this machine.
    """
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.set(zmq.RCVHWM, QUEUED_MESSAGES)
    socket.set(zmq.SNDHWM, QUEUED_MESSAGES)
    # An answer that cannot be sent is an error, which is counted; else it would just vanish.
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_IDLE_S)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
    try:
        address = resolve(host)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoDraftPort(host, first_port, last_port, reason) from error
    if ":" in address:
        socket.set(zmq.IPV6, 1)
    reason = "there is none"
    for port in range(first_port, last_port + 1):
        try:
            socket.bind(tcp_endpoint(address, port))
        except zmq.ZMQError as error:
            reason = zmq.strerror(error.errno or 0)
        else:
            return port
    raise NoDraftPort(host, first_port, last_port, reason)


def resolve(host: str) -> str:
    """The address behind a name; ZeroMQ binds to addresses only.

    Raises:
        OSError: There is none.
    """
    return str(network.getaddrinfo(host, None, type=network.SOCK_STREAM)[0][4][0])


def advertised_host(host: str, node_ip: str) -> str:
    """Where others reach what listens on `host`: there, or at the node's address.

    The node's it is where `host` means every address of the machine.
    """
    try:
        address = resolve(host)
    except OSError:
        return node_ip  # `listen` says what is wrong with it.
    return node_ip if ipaddress.ip_address(address).is_unspecified else address


def tcp_endpoint(host: str, port: int) -> str:
    """As ZeroMQ writes it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
