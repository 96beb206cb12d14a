"""WebShop: find the product that an instruction describes, choose its options and buy it."""

from runner.envs.webshop.environment import WebShop, WebShopOracle

__all__ = ["WebShop", "WebShopOracle"]
