import sys
from minitx.options import config_parser,to_config
def main(args=None):
    args=args[1:]
    p=config_parser(prog="minitx train"); c=to_config(p,p.parse_args(args))
    from minitx.training.run import train
    print(train(c))
